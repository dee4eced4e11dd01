-- One turn of a group runs at a time; the upkeep of its dashboard, in a container of its own, is in nobody's way.
DROP INDEX turns_one_running;
CREATE UNIQUE INDEX turns_one_running ON turns (group_folder, (kind = 'worker')) WHERE state = 'running';
